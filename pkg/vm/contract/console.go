package contract

import (
	"bytes"
	"time"
)

// ConsoleTime is the time before each line of a console, in UTC with a fixed width;
// a space follows it.
const ConsoleTime = "2006-01-02T15:04:05.000000000Z"

// CutConsoleTime parts a console's line into its time and its text.
func CutConsoleTime(line []byte) (time.Time, []byte) {
	stamp, text, found := bytes.Cut(line, []byte(" "))
	if at, err := time.Parse(ConsoleTime, string(stamp)); found && err == nil {
		return at, text
	}
	return time.Time{}, line
}
