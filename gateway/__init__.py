"""OpenAI's API in front of the text entries: stateless, and without PyTorch in its process."""
