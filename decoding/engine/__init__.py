"""Rows through slots: who gets a free one, which common beginnings are shared, how many there are, near ties."""
