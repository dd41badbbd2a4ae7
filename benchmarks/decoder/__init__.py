"""The engine beside other engines, and where the time of a round goes."""
