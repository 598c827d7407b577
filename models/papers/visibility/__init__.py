"""The evaluation of paper 004: a queue with a visibility timeout, figures 11 to 15."""
