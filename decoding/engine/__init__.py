"""Rows through slots: the engine's loop, a round, who gets a free slot, near ties."""
