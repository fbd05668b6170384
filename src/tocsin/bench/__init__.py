"""The measurements of `tocsin bench`, one file for each group of rows."""
