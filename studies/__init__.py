"""Scripts that check the workbench itself; nothing but tests imports them.

Each is `python -m studies.NAME`:

    analysis           bounds that derive themselves, beside those derived by hand
    change_points      steps that `nox -s history` finds in series with noise, and finds falsely
    coverings          the generated cases of both tiers: what they lack, or made anew
    fleet_faults       faults at random moments of a fleet by Ray: is a row lost, doubled, or late?
    interpreter_cost   what the interpreter takes for our kernels: stock, mended and strict
    power_check        on a GPU: are the energies of `nox -s profile` to be believed here?
    search_of_mutants  which mutants a search finds from nothing, and how soon
    smallest_error     the smallest planted error that `nox -s accuracy` sees: docs/power.md
    sound_kernels      the accuracy suite on right kernels of many designs, by seeds: which fail?
    speed              how long reports and commands take, beside what they should
    tiers_of_mutants   which tier's cases kill a mutant, without those that it names
    tile_times         on a GPU: does the model of attention's tiles order them as time does?
    timing_agreement   on a GPU: do other ways of timing agree with `nox -s bench`?
    timing_cheats      do kernels that only look fast lose their figures, and honest ones not?
    triton_versions    is the interpreter right, and strict, on other versions of Triton?
    vector_widths      how wide a compiled load is, by what the compiler knows of its address
"""
