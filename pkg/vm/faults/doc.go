// Package faults injects faults into the programs of a Mac, for tests: a process killed between any
// two steps, a full disk, writes undone by a power loss, a clock that jumps. It works only with the
// build tag "faults"; released programs contain empty functions.
//
// A program with the tag reads the directory in the environment variable MACRACK_FAULTS. Without
// the variable, faults are off.
//
//	arm      the name of a point: the first process to reach it renames the file to hit,
//	         adds its PID, and stops there forever
//	trace    if it exists, the names of all reached points are appended to it
//	full     if it exists, the disk is full: all writes fail
//	clock    the duration by which Clock is ahead
//	undo/    the changes that a power loss would undo: see Undoable
//	stats    if it exists, it is rewritten each time a process gets SIGUSR1
package faults
