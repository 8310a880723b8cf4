"""OpenAI's API in front of the text entries. The gateway is stateless and doesn't load PyTorch."""
