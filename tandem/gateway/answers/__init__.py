"""The guides of answers, and the objects of responses, which the loop's chunks become."""
