"""The vLLM engine. It drafts, verifies the loop's drafts, or speculates by itself."""
