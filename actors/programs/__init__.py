"""Rows that are programs: what a program may call, and how its turns become one row."""
