package images

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"macrack.io/macrack/pkg/images/format"
	"macrack.io/macrack/pkg/vm/contract"
)

// journalInterval is the interval at which a pull becomes durable. A killed agent downloads at
// most this much again.
const journalInterval = time.Second

// journal is the state of an interrupted pull. Every chunk in it is on the disk and verified.
type journal struct {
	Digest  string `json:"digest"`
	Private bool   `json:"private,omitempty"`
	// Chunks are the numbers of the finished chunks.
	Chunks []int `json:"chunks,omitempty"`
}

func (s *OCI) readJournal(name string) (journal, error) {
	data, err := os.ReadFile(filepath.Join(s.Dir, name, journalName))
	if err != nil {
		return journal{}, err
	}
	var j journal
	return j, json.Unmarshal(data, &j)
}

// resume returns the journal of an interrupted pull of the same image, or a new journal in an empty
// directory.
func (s *OCI) resume(image Image, layout *format.Layout) (journal, error) {
	dir := filepath.Join(s.Dir, image.Name)
	j, err := s.readJournal(image.Name)
	if err == nil && j.Digest == image.Digest {
		if info, err := os.Stat(filepath.Join(dir, diskName)); err == nil && info.Size() == layout.DiskSize && s.auxThere(dir, layout) {
			if image.Private && !j.Private {
				j.Private = true
				return j, contract.WriteJSON(filepath.Join(dir, journalName), j)
			}
			return j, nil
		}
	}
	if err := remove(s.Dir, image.Name); err != nil {
		return journal{}, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return journal{}, err
	}
	j = journal{Digest: image.Digest, Private: image.Private}
	return j, contract.WriteJSON(filepath.Join(dir, journalName), j)
}

func (s *OCI) auxThere(dir string, layout *format.Layout) bool {
	info, err := os.Stat(filepath.Join(dir, auxName))
	return err == nil && info.Size() == layout.Aux.Size
}

// keepJournal writes the journal at intervals until stop is called, which writes it a last time.
func (w *work) keepJournal() (stop func() error) {
	ended, stopped := make(chan struct{}), make(chan struct{})
	ticker := w.store.Clock.NewTicker(journalInterval)
	go func() {
		defer close(stopped)
		defer ticker.Stop()
		for {
			select {
			case <-ended:
				return
			case <-ticker.C():
				if err := w.writeJournal(); err != nil {
					klog.ErrorS(err, "Failed to write the journal of a pull", "dir", w.dir)
				}
				if w.syncErr != nil {
					return // every further write would return it
				}
			}
		}
	}()
	return func() error {
		close(ended)
		<-stopped
		return w.writeJournal()
	}
}

// writeJournal makes the finished chunks durable: first the data, then the journal.
func (w *work) writeJournal() error {
	w.mu.Lock()
	j := w.journal
	j.Chunks = slices.Sorted(maps.Keys(w.done))
	w.mu.Unlock()
	if w.syncErr != nil || len(j.Chunks) == w.journaled {
		return w.syncErr
	}
	if w.syncErr = w.sync(); w.syncErr != nil {
		return w.syncErr
	}
	if err := contract.WriteJSON(filepath.Join(w.dir, journalName), j); err != nil {
		return err
	}
	w.journaled = len(j.Chunks)
	return nil
}

func (w *work) sync() error {
	if err := w.disk.Sync(); err != nil {
		return err
	}
	return w.aux.Sync()
}
