/* All headers together, twice, and both forms of the call of score_initialize. */
#include <score_resource.h>
#include <score_options.h>
#include <sc.h>
#include <score.h>
#include <pm.h>
#include <score.h>
#include <sc.h>
#include <score_options.h>
#include <score_resource.h>

#if ARGUMENTS
int main(int argc, char **argv) {
    score_initialize(argc, argv);
#else
int main(void) {
    score_initialize();
#endif
    return score_num_node == 1 && score_pmnet[0] == (pmContext *)0 ? sc_barrier() : 1;
}
