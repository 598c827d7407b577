"""The evaluation of paper 001, chapter 3: failed and slow nodes below a queue on many nodes."""
