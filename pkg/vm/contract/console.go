package contract

import (
	"bytes"
	"time"
)

// ConsoleTime is the format of the time before each line of a console: UTC with a fixed width,
// followed by a space.
const ConsoleTime = "2006-01-02T15:04:05.000000000Z"

// CutConsoleTime splits a console line into its time and its text.
func CutConsoleTime(line []byte) (time.Time, []byte) {
	stamp, text, found := bytes.Cut(line, []byte(" "))
	if at, err := time.Parse(ConsoleTime, string(stamp)); found && err == nil {
		return at, text
	}
	return time.Time{}, line
}
