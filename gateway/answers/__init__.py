"""Answers: from the chunks of the loop to the objects of responses."""
