"""The collection contract against real servers: llama.cpp's, and `transformers serve`. scripts/real_servers.sh installs them."""
