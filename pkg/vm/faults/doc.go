// Package faults marks the places at which tests have a Mac's programs fail: ended
// between any two steps, a disk that is full, what a power loss undoes, a clock that
// jumps. All of it exists with the build tag "faults" only; what is shipped has
// empty functions in its place.
//
// A program built with the tag looks in the directory that the environment variable
// MACRACK_FAULTS names, and is left alone without it:
//
//	arm      the name of a place: the process that comes there first renames the
//	         file to hit, which then has its PID too, and stays there for good
//	trace    if it exists, the names of all places are appended to it
//	full     if it exists, the disk has no room: nothing can be written
//	clock    a duration by which Clock is ahead of the time
//	undo/    what a power loss would undo: see Undoable
//	stats    if it exists, it is written anew each time a process gets SIGUSR1
package faults
