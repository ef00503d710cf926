package main

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/ledger"
	"macrack.io/macrack/pkg/ledger/evidence"
	"macrack.io/macrack/pkg/version"
)

// writeEvidence writes the report on a file, with its evidence, as HTML. It reads the file twice:
// which records are evidence follows from the report.
func writeEvidence(ctx context.Context, path, htmlPath string, expected expectation, window ledger.Window, stdout io.Writer, now time.Time) (rack.ComplianceVerdict, error) {
	if path == "-" {
		return "", errors.New("--html reads the records twice, so they cannot be the standard input; use a file")
	}
	known, err := expected.read()
	if err != nil {
		return "", err
	}
	_, anchors := open(path, nil, known, expected.retention, now)
	var findings *ledger.Findings
	sum, err := hashed(path, func(source ledger.RecordSource) (err error) {
		findings, err = ledger.Find(ctx, source, anchors, window)
		return err
	})
	if err != nil {
		return "", err
	}
	e := &evidence.Evidence{
		File: filepath.Base(path), SHA256: sum, Window: window, MadeAt: now, Version: version.String(),
		Report: findings.Reports[0], Leases: findings.Leases, Heads: ledger.NewHeads(now), Expected: known,
		History: evidence.NewHistory(window, findings.Reports[0]),
	}
	again, err := hashed(path, func(source ledger.RecordSource) error {
		return source(ctx, func(record *rack.AuditRecord) error {
			e.Heads.Add(record)
			e.History.Add(record)
			return nil
		})
	})
	if err != nil {
		return "", err
	}
	if again != sum {
		return "", fmt.Errorf("%s was changed while it was read; try again", path)
	}
	if len(e.Heads.Chains) == 0 {
		return "", verdict("the file has no records to report on")
	}
	if err := writeFile(htmlPath, func(w io.Writer) error {
		buffered := bufio.NewWriter(w)
		return errors.Join(e.Write(buffered), buffered.Flush())
	}); err != nil {
		return "", err
	}
	fmt.Fprintf(stdout, "evidence: %s verdict=%s violations=%d export-sha256=%s\n", htmlPath, e.Report.Verdict, len(e.Report.Violations), sum)
	return e.Report.Verdict, nil
}

// hashed calls read with the records of a file, and returns the SHA-256 of the file.
func hashed(path string, read func(ledger.RecordSource) error) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer file.Close()
	sum := sha256.New()
	tee := io.TeeReader(file, sum)
	err = read(ledger.ReadFrom(tee))
	if malformed := (*ledger.MalformedError)(nil); errors.As(err, &malformed) {
		return "", verdict(fmt.Sprintf("the file is not an export of a ledger: %v", err))
	}
	if err != nil {
		return "", err
	}
	_, err = io.Copy(io.Discard, tee)
	return hex.EncodeToString(sum.Sum(nil)), err
}
