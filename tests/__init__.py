"""Tests of Tocsin. README.md is a map of them."""
