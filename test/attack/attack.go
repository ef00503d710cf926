package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// attack makes all attempts and all legitimate uses. Attempts that change the leases for good come
// last.
func (w *world) attack(ctx context.Context, r *report) {
	if r.family == "" {
		r.use(ctx, w, w.usesOfTenants()...)
		if err := w.settle(ctx); err != nil {
			r.broken++
			r.line("✗", "legitimate", "-", "everything settles", err.Error())
		}
	}
	for _, family := range [][]attempt{
		w.dryRuns(), // first: what they must not record would fold into the records of others
		w.forgedCreations(), w.forgedUpdates(), w.forgedStatuses(), w.finalizers(), w.deletions(), w.times(), w.names(), w.crossNamespace(),
		w.leaks(), w.podsAndNodes(), w.stolenControllers(), w.agents(), w.joining(), w.directly(), w.etcdAccess(), w.impersonation(), w.escalation(), w.quotas(),
		w.ledger(), w.images(), w.configuration(), w.values(), w.floods(), w.starts(), w.actors(),
	} {
		r.try(ctx, w, family...)
	}
	r.flood(ctx, w)
	if r.family == "" {
		r.use(ctx, w, w.usesOfOthers()...)
		r.use(ctx, w, w.holds()...)
	}
	held := w.held()
	if r.skips(held) {
		return
	}
	if r.family != "" {
		r.use(ctx, w, w.holds()...)
	}
	if err := w.settle(ctx); err != nil {
		r.broken++
		r.line("✗", "legitimate", "-", "everything settles", err.Error())
	}
	r.try(ctx, w, held...)
}

// Wants.

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

func conflict(text string) want { return says(http.StatusConflict, text) }

func notFound() want { return want{codes: []int{http.StatusNotFound}} }

func noSuchVerb() want { return want{codes: []int{http.StatusMethodNotAllowed}} }

// ignored is an answer without an error to a request that changed nothing.
func ignored() want { return want{codes: []int{http.StatusOK}} }

// noRight is the answer of RBAC to a user without the right.
func noRight() want { return forbidden("cannot ") }

// dropped wants that an object was created, and that a check of the stored object holds.
func dropped(check func(obj map[string]any) error) want {
	return want{codes: []int{http.StatusCreated, http.StatusOK}, holds: func(body string) error {
		obj := map[string]any{}
		if err := json.Unmarshal([]byte(body), &obj); err != nil {
			return err
		}
		return check(obj)
	}}
}

// field wants a field of an object to have a value; nil for an absent field.
func field(value any, path ...string) func(map[string]any) error {
	return func(obj map[string]any) error {
		if is := dig(obj, path...); is != value {
			return fmt.Errorf("%s is %v, wanted %v", strings.Join(path, "."), is, value)
		}
		return nil
	}
}

func all(checks ...func(map[string]any) error) func(map[string]any) error {
	return func(obj map[string]any) error {
		for _, check := range checks {
			if err := check(obj); err != nil {
				return err
			}
		}
		return nil
	}
}

// not wants a field to have a different value.
func not(value any, path ...string) func(map[string]any) error {
	return func(obj map[string]any) error {
		if is := dig(obj, path...); is == value {
			return fmt.Errorf("%s is %v", strings.Join(path, "."), is)
		}
		return nil
	}
}
