"""Pure decisions: events in, commands out. Time is an argument; nothing here can see the world."""
