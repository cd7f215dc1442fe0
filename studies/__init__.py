"""Scripts that check the workbench itself; only tests import them.

Run one by `python -m studies.NAME`:

    analysis           compare derived bounds with bounds derived by hand
    any_op             what of PyTorch an op may call, and how many references of others become ops
    assert_close       planted defects that assert_matches and assert_close find in a plain test
    change_points      true and false steps that `nox -s history` finds in series with noise
    coverings          the generated cases of both tiers: list missing ones, or add them
    first_failures     rows and seconds after which a run of `ci` fails a planted defect
    fleet_faults       faults at random moments of a fleet by Ray: is a row lost, doubled, or late?
    interpreter_cost   time of our kernels in the interpreter: stock, mended and strict
    op_info            torch's own list of operations, judged from a plain test: which are whole?
    power_check        on a GPU: can the energies of `nox -s profile` be trusted here?
    recording_cost     the time that a recording of calls adds to a step of training, on a CPU
    search_of_mutants  the mutants that a search finds from nothing, and the time it takes
    smallest_error     the smallest planted error that `nox -s accuracy` detects: docs/power.md
    sound_kernels      the accuracy suite on right kernels of many designs, by seeds: which fail?
    speed              time of reports and commands, and their targets
    tile_times         on a GPU: does the model of attention's tiles order them as time does?
    timing_agreement   on a GPU: do other ways of timing agree with `nox -s bench`?
    timing_cheats      do kernels that only look fast lose their figures, and honest ones not?
    vector_widths      the width of a compiled load, by the compiler's knowledge of its address
    versions           verdicts, registers and spills of kernels under several Tritons
    warm_judge         seconds from an edit of a file to its verdict by `kernel-workbench serve`
"""
