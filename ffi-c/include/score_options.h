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
 * The value of an option of scrun, the leftmost one if the user has given it more than once. The
 * empty string if it has no value; NULL if it was not given, or without scrun. The value must not
 * be freed or altered. To be called after score_initialize.
 *   keyword IN the option's name
 * Manual page score_get_opt(3).
 */
char *score_get_opt(char *keyword);

#ifdef __cplusplus
}
#endif

#endif /* SCORE_SCORE_OPTIONS_H */
