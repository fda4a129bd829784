/*
 * score_options.h - scrun's options (manual 4.2).
 */
#ifndef SCORE_SCORE_OPTIONS_H
#define SCORE_SCORE_OPTIONS_H

/* The manual also declares sc_flush here. */
#include <sc.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Returns the value of an option of scrun. If the user has given the option more than once, the
 * leftmost value applies. Returns the empty string if the option has no value, and NULL if it was
 * not given or the program runs without scrun. The value must not be freed or altered. Call this
 * function after score_initialize.
 *   keyword IN the option's name
 * Manual page score_get_opt(3).
 */
char *score_get_opt(char *keyword);

#ifdef __cplusplus
}
#endif

#endif /* SCORE_SCORE_OPTIONS_H */
