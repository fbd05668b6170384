"""Reads: jobs, lines, counts, and what an audit looks at."""
