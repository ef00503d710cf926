package race

import (
	"encoding/binary"
	"os"
	"time"

	"k8s.io/utils/clock"
)

// fileClock is the real time, moved by what a file says. All processes of a race have the same file.
type fileClock struct {
	clock.RealClock
	file *os.File
	skew time.Duration
}

func openClock(path string, skew time.Duration) (*fileClock, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	return &fileClock{file: file, skew: skew}, nil
}

func (c *fileClock) offset() time.Duration {
	var b [8]byte
	if _, err := c.file.ReadAt(b[:], 0); err != nil {
		return 0 // nobody has moved it
	}
	return time.Duration(binary.LittleEndian.Uint64(b[:]))
}

// move moves the clock of all processes.
func (c *fileClock) move(by time.Duration) error {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], uint64(c.offset()+by))
	_, err := c.file.WriteAt(b[:], 0)
	return err
}

func (c *fileClock) Now() time.Time { return time.Now().Round(0).Add(c.offset() + c.skew) }

func (c *fileClock) Since(t time.Time) time.Duration { return c.Now().Sub(t) }
