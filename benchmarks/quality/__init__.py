"""How good a running server's answers are: labelled records in, figures of quality out."""
