"""The code that made the models in `tandem/demo`: a small target and a smaller draft."""
