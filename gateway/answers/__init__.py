"""Answers: from the chunks of the loop to the objects that clients are sent."""
