"""`placekit plan`: which device runs which part of a language model, how fast, and the lines to paste."""
