"""The policy simulation of paper 002 (figures 8 and 9), on the policies that the broker runs."""
