"""Convert the loop's chunks to the objects of responses."""
