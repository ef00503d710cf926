package main

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// families are the families of attempts in their order. Dry runs come first: what they must not
// record would fold into the records of others. Attempts without a function are in testdata, in a
// file of the same name.
var families = []struct {
	file     string
	attempts func(*world) []attempt
}{
	{file: "dry-run"},
	{file: "create"},
	{file: "update"},
	{file: "status"},
	{file: "finalizers"},
	{file: "deletions"},
	{file: "times"},
	{file: "names"},
	{file: "cross"},
	{file: "leaks"},
	{file: "pods-and-nodes"},
	{file: "controllers"},
	{file: "agents"},
	{attempts: (*world).joining},
	{attempts: (*world).directly},
	{attempts: (*world).etcdAccess},
	{attempts: (*world).guestNetwork},
	{file: "impersonation"},
	{file: "escalation"},
	{attempts: (*world).quotas},
	{file: "ledger"},
	{file: "images"},
	{file: "configuration"},
	{attempts: (*world).values},
	{attempts: (*world).floods},
	{file: "starts"},
	{attempts: (*world).actors},
}

// attack makes all attempts and all legitimate uses. Attempts that change the leases for good come
// last.
func (w *world) attack(ctx context.Context, r *report) error {
	var all [][]attempt
	for _, f := range families {
		if f.attempts != nil {
			all = append(all, f.attempts(w))
			continue
		}
		attempts, err := w.cases(f.file)
		if err != nil {
			return err
		}
		all = append(all, attempts)
	}
	held, err := w.cases("held")
	if err != nil {
		return err
	}
	if r.family == "" {
		r.use(ctx, w, w.usesOfTenants()...)
		r.settle(ctx, w)
	}
	for _, attempts := range all {
		r.try(ctx, w, attempts...)
	}
	r.flood(ctx, w)
	if r.family == "" {
		r.use(ctx, w, w.usesOfOthers()...)
		r.use(ctx, w, w.holds()...)
	}
	if r.skips(held) {
		return nil
	}
	if r.family != "" {
		r.use(ctx, w, w.holds()...)
	}
	r.settle(ctx, w)
	r.try(ctx, w, held...)
	return nil
}

// settle reports a use as broken if objects continue to change by themselves.
func (r *report) settle(ctx context.Context, w *world) {
	if err := w.settle(ctx); err != nil {
		r.broken++
		r.line("✗", "legitimate", "-", "everything settles", err.Error())
	}
}

func says(code int, text string) want { return want{codes: []int{code}, says: text} }

// anyOf wants an answer that has one of several codes and says one of several texts: what a client
// sees of a connection that the server closes depends on how much of its request it had sent.
func anyOf(codes []int, texts ...string) want {
	return want{codes: codes, holds: func(answer string) error {
		if slices.ContainsFunc(texts, func(text string) bool { return strings.Contains(answer, text) }) {
			return nil
		}
		return fmt.Errorf("the answer says none of %q: %s", texts, short(answer))
	}}
}

func forbidden(text string) want { return says(http.StatusForbidden, text) }

func invalid(text string) want { return says(http.StatusUnprocessableEntity, text) }

func badRequest(text string) want { return says(http.StatusBadRequest, text) }

// ignored is an answer without an error to a request that changed nothing.
func ignored() want { return want{codes: []int{http.StatusOK}} }

// noRight is the answer of RBAC to a user without the right.
func noRight() want { return forbidden("cannot ") }
