"""What is tracked over time. Everything is lower-is-better, since asv reads a rise as a regression.

Each benchmark has a `version`: raise it when the meaning of its number changes. Inputs are
append-only. `NotImplementedError` in `setup` is asv's way to skip a case.
"""
