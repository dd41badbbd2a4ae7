"""The run directory: what commits a unit, why a changed run is refused, what rows add up to, and what is missing."""
