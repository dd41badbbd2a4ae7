"""Tests of MTP heads: tiny targets of each family with a random head in their files, and a textbook head."""
