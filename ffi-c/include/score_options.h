/*
 * score_options.h - scrun's options (manual 4.2).
 */
#ifndef SCORE_SCORE_OPTIONS_H
#define SCORE_SCORE_OPTIONS_H

/* The manual declares sc_flush here, too. */
#include <sc.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * The value of an option that the user has given scrun, the leftmost one if it was given more
 * than once; the empty string if it has no value; NULL if it was not given, and without scrun. Not
 * to be freed nor altered. To be called after score_initialize.
 *   keyword IN the option's name
 * Manual page score_get_opt(3).
 */
char *score_get_opt(char *keyword);

#ifdef __cplusplus
}
#endif

#endif /* SCORE_SCORE_OPTIONS_H */
