"""Files for --kernels: sound kernels of layer norm that cast on their way, and declare it.

Each has the casts of one that is in wide use, which is named, and no line of it.
"""
