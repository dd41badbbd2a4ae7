"""Lookups: drafters that propose what followed the newest tokens before, without a model.

Each proposed token carries the chance that it is accepted: the frequency of the continuation, corrected by how often
such continuations were accepted (`Calibration`).

Why this is lossless under rejection: a proposal is a point mass that follows from committed tokens alone, and the next
token of a row is drawn with noise at a position that no earlier decision depended on. That holds for tokens of other
rows, too, if they were written with other noise. Rows with equal noise keys (a seed in the sampling parameters gives
the same to all prompts) share their noise, so such a row looks nothing up, except under coupled verification, where any
draft is allowed. An old text of the same row was written with the row's own noise, at positions that are still to come:
so no engine takes a prediction under rejection (`Engine.problem_with`).
"""
