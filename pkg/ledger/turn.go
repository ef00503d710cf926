package ledger

import (
	"context"
	"errors"
	"fmt"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/lru"

	"macrack.io/macrack/pkg/apis/rack"
)

// OutOfTurnError says that a record is not the next of its chain.
type OutOfTurnError struct {
	Name string // the name of the record
	Next string // the name that the next record of the chain has
}

func (e *OutOfTurnError) Error() string {
	return fmt.Sprintf("ledger: record %q is out of turn: the next of its chain is %q", e.Name, e.Next)
}

// maxTurns bounds how often a record is given a new name because other servers got ahead.
const maxTurns = 64

// A Writer creates records that are the main objects of their transactions, each in its chain's turn.
type Writer struct {
	mu    sync.Mutex
	lines map[string]*line
	next  *lru.Cache // chain -> name of the next record, as far as is known
}

// A line is those who want to write to a chain; who has the token is at it.
type line struct {
	token   chan struct{}
	waiting int
}

// NewWriter returns a Writer.
func NewWriter() *Writer {
	return &Writer{lines: map[string]*line{}, next: lru.New(1 << 13)}
}

// Write calls create with record, whose namespace and name are set, until the name is the next of its chain.
// create must store the record in a transaction that Seals it, and return Seal's error if that refuses.
// Writes of this process to a chain are made one after the other.
func (w *Writer) Write(ctx context.Context, record *rack.AuditRecord, create func(context.Context, *rack.AuditRecord) error) error {
	chain := Chain(record)
	leave, err := w.enter(ctx, chain)
	if err != nil {
		return err
	}
	defer leave()

	record.Namespace = Namespace(record)
	record.Name = Name(chain, 1)
	if known, ok := w.next.Get(chain); ok {
		record.Name = known.(string)
	}
	for range maxTurns {
		err := create(ctx, record)
		var outOfTurn *OutOfTurnError
		if errors.As(err, &outOfTurn) {
			record.Name = outOfTurn.Next
			continue
		}
		if _, sequence, ok := splitName(record.Name); ok && err == nil {
			w.next.Add(chain, Name(chain, sequence+1))
		}
		return err
	}
	return apierrors.NewTooManyRequests(fmt.Sprintf("too many writes to the ledger of %s at once; try again", chain), 1)
}

// enter waits for the caller's turn at a chain, and returns what ends it.
func (w *Writer) enter(ctx context.Context, chain string) (leave func(), err error) {
	w.mu.Lock()
	l := w.lines[chain]
	if l == nil {
		l = &line{token: make(chan struct{}, 1)}
		l.token <- struct{}{}
		w.lines[chain] = l
	}
	l.waiting++
	w.mu.Unlock()

	quit := func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if l.waiting--; l.waiting == 0 {
			delete(w.lines, chain)
		}
	}
	select {
	case <-l.token:
		return func() { l.token <- struct{}{}; quit() }, nil
	case <-ctx.Done():
		quit()
		return nil, ctx.Err()
	}
}
