"""Tools of a chat: the functions that the model may call, and its calls of them."""
