"""The evaluation of paper 000: dequeue strategies, figures 9 to 12."""
