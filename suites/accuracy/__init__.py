"""The accuracy suite: kernels against float64, case by case."""
