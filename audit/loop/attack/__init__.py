"""The attack on a training function, which turns a broken premise into a lower bound."""
