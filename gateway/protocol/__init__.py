"""What clients send, and what they are sent: the JSON objects of the API."""
