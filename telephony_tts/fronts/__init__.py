"""Several server processes behind one port: claims of calls, moved sockets, metrics of all."""
