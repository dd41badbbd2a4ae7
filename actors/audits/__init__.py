"""Audits of units while their run goes on: which of them another place judges, and which one."""
