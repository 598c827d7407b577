"""The simulation of paper 000 (figures 9 to 12), on the dequeue strategies that the queue runs."""
