"""The Hugging Face hub (or the server that HF_ENDPOINT names): its files, brought into its client's
own cache.

The hub's client begins a broken file again, checks no hash, and waits as long as a server likes.
Here a broken file goes on where it ended, in another run too; every file has the size and hash that
the listing says; and a server that is silent, slow or wrong ends in an error within minutes. The
folders are those of the hub's client, so that each finds the other's files.
"""
