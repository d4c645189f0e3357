"""Results for people: tables on a terminal. Data in, renderables out; nothing here prints or computes figures of its own."""
